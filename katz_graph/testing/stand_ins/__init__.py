"""Makes small random model files in the layouts, names and formats in which models are published.
Names and shapes are copied from the published files; the loader's tables are not used.
"""
