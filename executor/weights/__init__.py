"""Manages the weights of one device's models: weight sets with LoRAs, original weights, and LoRA
files read in the background. Must not know requests and turns.
"""
