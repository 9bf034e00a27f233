"""Parts of running a plan: what users import is in `tools/plan_run.py`."""
