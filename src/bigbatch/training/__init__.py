"""Accumulation in Keras and TensorFlow."""
