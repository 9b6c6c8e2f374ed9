"""`ridgeline up`: router, workers and gateway as processes of this machine, started, watched and stopped.

`plan` and `lifecycle` decide, `supervisor`, `processes` and `probes` act.
"""
