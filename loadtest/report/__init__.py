"""The report: files, page, charts."""
