"""Reports: what a run's files say, as one HTML page that needs nothing else.

    run folders -> reading -> statistics -> curves -> charts -> sections -> page
                              statistics -> tables (on the page, Markdown, CSV)

Only files are read: no code of a run is imported, and no torch.
"""

from envfleet.report.writing import write_report

__all__ = ["write_report"]
