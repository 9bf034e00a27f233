"""Inside of the Redis stores: the connection, the scripts, and a store per protocol."""
