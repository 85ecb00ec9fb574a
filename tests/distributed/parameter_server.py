"""A model under `ParameterServerStrategy`, with its servers in this process: prints what `accumulate` raises."""

import keras
import tensorflow as tf

import bigbatch
from bigbatch.cli.launch import free_ports


def main():
    ports = free_ports(2)
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{ports[0]}"], "ps": [f"127.0.0.1:{ports[1]}"]})
    worker, server = (tf.distribute.Server(cluster, job_name=job, protocol="grpc") for job in ("worker", "ps"))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    try:
        bigbatch.accumulate(model, micro_batch_size=2)
    except bigbatch.AccumulationError as error:
        print(error)
    del worker, server  # which lived until here


if __name__ == "__main__":
    main()
