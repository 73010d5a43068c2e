"""The arithmetic around the model: noise tables, schedules, samplers, masks. Knows nothing about
networks, devices' plans or nodes.
"""
