"""Makes `timeline-*.json`: what TensorFlow itself writes of a graph with variable scopes.

    python3 -m venv /tmp/tfenv && /tmp/tfenv/bin/pip install tensorflow-cpu
    /tmp/tfenv/bin/python tests/runs/importers/data/make_timeline.py

TensorFlow is no dependency of laptime: the files are committed, this script says where they come from
(tensorflow-cpu 2.21.0). One thread, so that operations follow one another as on a GPU's stream.
"""

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline

HERE = Path(__file__).parent
STEPS = 3


def variable(name: str, shape: tuple[int, ...]) -> tf.Variable:
    return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.05))


def conv(network: tf.Tensor, name: str, outputs: int) -> tf.Tensor:
    with tf.variable_scope(name):
        network = tf.nn.conv2d(
            network, variable("weights", (3, 3, network.shape[-1], outputs)), strides=1, padding="SAME"
        )
        network = tf.nn.relu(tf.nn.bias_add(network, variable("biases", (outputs,))))
        return tf.nn.max_pool2d(network, 2, 2, "SAME")


def dense(network: tf.Tensor, name: str, outputs: int) -> tf.Tensor:
    with tf.variable_scope(name):
        network = tf.reshape(network, (-1, int(np.prod(network.shape[1:]))))
        return tf.matmul(network, variable("weights", (network.shape[-1], outputs))) + variable(
            "biases", (outputs,)
        )


def main() -> None:
    tf.disable_eager_execution()
    tf.disable_resource_variables()
    images = tf.placeholder(tf.float32, (8, 16, 16, 3), name="images")
    labels = tf.placeholder(tf.int32, (8,), name="labels")
    network = conv(conv(images, "conv1", 8), "conv2", 16)
    network = dense(tf.nn.relu(dense(network, "fc1", 32), name="fc1/Relu"), "fc2", 5)
    with tf.variable_scope("loss"):
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network))
    train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    random = np.random.default_rng(0)
    feed = {images: random.normal(size=(8, 16, 16, 3)), labels: random.integers(0, 5, 8)}
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(train, feed)
        for step in range(STEPS):
            metadata = tf.RunMetadata()
            session.run(train, feed, options=options, run_metadata=metadata)
            text = timeline.Timeline(metadata.step_stats).generate_chrome_trace_format()
            (HERE / f"timeline-{step}.json").write_text(text)


if __name__ == "__main__":
    main()
