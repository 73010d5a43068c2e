"""Holds plans as data: regions, programs, devices, and the values that pass between stages. Must
not know how they are made or run.
"""
