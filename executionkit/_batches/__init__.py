"""Batches of requests: values, the two services, submitting, waiting, collecting."""
