"""Keeps the weights of one device's models: sets with LoRAs, originals, files read beside the
computing. Must not know requests and turns.
"""
