"""A layer that kills its process in the middle of training, with no chance to clean up."""

import os
import signal

import keras
import tensorflow as tf


class Fuse(keras.layers.Layer):
    """Passes its inputs on and counts how often; the `kill_at`-th time, it burns."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.kill_at = kill_at
        self.passes = 0

    def call(self, inputs):
        outputs = tf.numpy_function(self._burn, [inputs], inputs.dtype)
        outputs.set_shape(inputs.shape)
        return outputs

    def _burn(self, inputs):
        self.passes += 1
        if self.passes == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs
