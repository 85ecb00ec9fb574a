import keras
import pytest


@pytest.fixture(autouse=True)
def float64():
    """Equality is tested in float64, where rounding (1e-15) and mistakes (1e-2) are far apart."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
