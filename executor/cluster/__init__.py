"""Drives several workers: requests, supervision, request routing, ControlNet replicas. Must not
know what the workers compute.
"""
