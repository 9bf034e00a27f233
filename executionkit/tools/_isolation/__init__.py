"""Tools in worker processes: the workers, the pool of them, and what they say.

`protocol`, `worker`, `loading` and `limits` are what a worker imports; they must stay
small, since its start waits for them. The other modules are the parent's side.
"""
