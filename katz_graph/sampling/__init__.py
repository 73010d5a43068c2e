"""Implements the arithmetic around the model: noise tables, schedules, samplers, masks. Must not
know networks, plans or nodes.
"""
