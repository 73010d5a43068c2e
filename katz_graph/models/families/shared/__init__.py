"""Stages that several families of models use: text encoders and VAEs."""
