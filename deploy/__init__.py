"""The front door: HTTP API, ready configurations, and the Ray Serve application."""
