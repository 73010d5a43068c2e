"""Gives the thread of one device its work: whose turn it is, which processors it has and how its
threads wait. Must not know what is computed.
"""
