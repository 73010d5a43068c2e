"""Declares, computes and sizes the stages that several families share: text encoders and VAEs."""
