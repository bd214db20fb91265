"""One check a module: `check(asked) -> list[CheckResult]`. A check may raise; the preflight tells of that."""
