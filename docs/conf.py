"""The documentation site: `make docs` builds it from these pages and the docstrings, offline."""

from importlib.metadata import version as _version

project = "envfleet"
author = "the envfleet developers"
version = release = _version("envfleet")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["data"]

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay readable; docstrings say what arguments mean
autodoc_preserve_defaults = True
autodoc_mock_imports = ["tianshou"]  # not in the environment of `make docs`

html_theme = "furo"
html_title = "envfleet"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
