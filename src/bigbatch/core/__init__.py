"""The arithmetic of accumulation. Nothing here imports TensorFlow."""
