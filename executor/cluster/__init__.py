"""Drives several workers: requests, supervision, placement of requests, replicas of ControlNets.
Must not know what they compute.
"""
