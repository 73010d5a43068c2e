"""Stores the activations of templates, and reads them while requests compute."""
