"""The audit counter over HTTP: a page, JSON, CSV and server-sent events. Nothing here changes what is counted."""
