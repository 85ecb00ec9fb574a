"""A model with two optimizers."""

import keras
import tensorflow as tf

layers = keras.layers


class Gan(keras.Model):
    """The guide's GAN with the noise in the data, so that two runs see the same."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(6, activation="tanh")])
        self.discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])
        self.built = True
        self.d_loss_tracker, self.g_loss_tracker = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def losses_of(self, real, noise):
        fake = self.generator(noise)
        both = tf.concat([self.discriminator(fake), self.discriminator(real)], 0)
        labels = tf.concat([tf.ones_like(fake[:, :1]), tf.zeros_like(real[:, :1])], 0)
        return self.loss_fn(labels, both), self.loss_fn(tf.zeros_like(fake[:, :1]), self.discriminator(fake))

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            d_loss, _ = self.losses_of(real, noise)
        variables = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, variables), variables))
        with tf.GradientTape() as tape:
            _, g_loss = self.losses_of(real, noise)
        variables = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, variables), variables))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}
