"""How a step crosses a process line: rules (pure), arena (memory), worker and pool (processes)."""
