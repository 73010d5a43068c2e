"""Holds plans as data: regions, programs, devices, and the values passed between stages. Must not
know how plans are made or run.
"""
