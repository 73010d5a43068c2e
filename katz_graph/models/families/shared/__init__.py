"""Declares, computes and sizes the stages that several families share: text encoders, VAEs and
those of transformers; makes the parts of their small random models.
"""
