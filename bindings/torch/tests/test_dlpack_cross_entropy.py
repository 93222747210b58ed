"""cross_entropy and its gradient against float64, through NumPy arrays."""

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import LAYOUTS, check, floats, untouched

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
IGNORED = -100


def reference(x, targets, weights=None, smoothing=0.0, z_loss=0.0, cap=0.0, scale=1.0):
    """Losses, their gradients, lse, entropy and argmax of each token; 0 (argmax -1) if ignored."""
    x = np.float64(x)
    classes = x.shape[-1]
    w = np.ones(classes) if weights is None else np.float64(weights)
    z = cap * np.tanh(scale * x / cap) if cap else scale * x
    inner = scale * (1 - (z / cap) ** 2 if cap else np.ones_like(z))
    top = z.max(-1, keepdims=True)
    lse = np.log(np.exp(z - top).sum(-1, keepdims=True)) + top
    p = np.exp(z - lse)
    hot = targets[..., None] == np.arange(classes)
    mix = (1 - smoothing) * hot * w + smoothing / classes * w
    loss = (mix * (lse - z)).sum(-1) + z_loss * lse[..., 0] ** 2
    slope = ((mix.sum(-1, keepdims=True) + 2 * z_loss * lse) * p - mix) * inner
    counted = targets != IGNORED
    entropy = -(p * np.log(p)).sum(-1)
    return (
        np.where(counted, loss, 0),
        np.where(counted[..., None], slope, 0),
        np.where(counted, lse[..., 0], 0),
        np.where(counted, entropy, 0),
        np.where(counted, z.argmax(-1), -1),
        np.where(counted, (hot * w).sum(-1), 0),
    )


def tokens(dtype=np.float32, classes=37):
    logits = 2 * floats(3, 5, classes, dtype=dtype)
    targets = np.random.default_rng(1).integers(0, classes, (3, 5))
    targets[0, 1] = targets[2, 4] = IGNORED
    return logits, targets


@layouts
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_everything_at_once(layout, dtype):
    logits, targets = tokens(dtype)
    weights = np.abs(floats(37, seed=2))
    factors = np.abs(floats(3, 5, seed=3))  # of one sign, so that sums have no cancellation
    options = {"label_smoothing": 0.1, "z_loss": 0.01, "soft_cap": 5.0, "scale": 0.8}
    loss, slope, lse, entropy, argmax, count = reference(
        logits, targets, weights, 0.1, 0.01, cap=5.0, scale=0.8
    )
    x, t = layout(logits), layout(targets)
    inputs = {"class_weights": weights, "token_weights": layout(factors), **options}
    outputs = dict.fromkeys(
        ("loss", "z_loss_sum", "accuracy", "lse", "token_loss", "argmax", "entropy"), True
    )
    outputs["token_loss"] = layout(np.zeros((3, 5), np.float32))
    with untouched(x, t, weights, factors):
        got = nf.cross_entropy(x, t, **inputs, **outputs)
        both = nf.cross_entropy_forward_backward(
            x, t, dlogits=layout(np.zeros_like(x)), loss_scale=3.0, **inputs, **outputs
        )
        back = nf.cross_entropy_backward(x, t, got.lse, loss_scale=3.0, **inputs)
    for result in (got, both):
        check(result.loss, (factors * loss).sum() / count.sum())
        check(result.token_loss, loss)
        check(result.lse, lse)
        check(result.entropy, entropy)
        check(result.z_loss_sum, (factors * 0.01 * lse**2).sum() / count.sum())
        np.testing.assert_array_equal(result.argmax, argmax)
        counted = targets != IGNORED
        check(result.accuracy, (argmax == targets)[counted].mean())
    expected = 3.0 * factors[..., None] * slope / count.sum()
    check(both.dlogits, expected)
    check(back.dlogits, expected)
    assert back.loss is None and back.lse is None and back.row_scale is None


@layouts
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_plain(layout, kind):
    logits, targets = tokens()
    loss, slope, *_, count = reference(logits, targets)
    x, t = layout(logits), layout(targets.astype(kind))
    got = nf.cross_entropy(x, t)
    check(got.loss, loss.sum() / count.sum())
    assert [value for value in got if value is not None] == [got.loss]
    check(nf.cross_entropy(x, t, reduction="sum").loss, loss.sum())
    got = nf.cross_entropy(x, t, reduction="none")
    check(got.token_loss, loss)
    assert got.loss is None
    check(nf.cross_entropy_forward_backward(x, t, dlogits=x).loss, loss.sum() / count.sum())
    check(x, slope / count.sum())  # over the logits themselves


def test_numbers_that_live_in_arrays():
    logits, targets = tokens()
    loss, slope, lse, *_ = reference(logits, targets)
    lse = nf.cross_entropy(logits, targets, lse=True).lse
    for one in (lambda v: v, lambda v: np.array(v, np.float32), lambda v: np.array([[v]], "f4")):
        numbers = {"denominator": one(50.0), "loss_scale": one(0.5)}
        got = nf.cross_entropy_forward_backward(logits, targets, **numbers)
        check(got.loss, loss.sum() / 50)
        check(got.dlogits, 0.5 * slope / 50)
        check(nf.cross_entropy_backward(logits, targets, lse, **numbers).dlogits, 0.5 * slope / 50)


def test_deferred_scale():
    logits, targets = tokens()
    factors = floats(3, 5, seed=3)
    _, slope, *_, count = reference(logits, targets)
    got = nf.cross_entropy_forward_backward(
        logits, targets, token_weights=factors, loss_scale=7.0, defer_scale=True
    )
    check(got.dlogits, slope)
    check(got.row_scale, np.where(targets == IGNORED, 0, 7.0 * factors / count.sum()))


def test_targets_out_of_range_and_another_ignore_index():
    logits, targets = tokens()
    loss, *_ = reference(logits, targets)
    for index in (0, -1, 2**40):
        moved = np.where(targets == 0, 1, targets)
        check(
            nf.cross_entropy(
                logits, np.where(moved == IGNORED, index, moved), ignore_index=index
            ).loss,
            np.float64(nf.cross_entropy(logits, moved).loss),
        )
    bad = np.zeros(1, np.int32)
    nf.cross_entropy(logits, targets, bad_target=bad)
    assert bad == 0
    targets[1, 1] = 37
    got = nf.cross_entropy(logits, targets, reduction="none", bad_target=bad).token_loss
    assert bad == 1 and np.isnan(got[1, 1]) and np.isnan(got).sum() == 1


def test_no_tokens_and_a_rank_of_one():
    got = nf.cross_entropy_forward_backward(np.zeros((0, 9), np.float32), np.zeros(0, np.int64))
    assert got.loss == 0 and got.dlogits.shape == (0, 9)
    logits, targets = tokens()
    targets[...] = IGNORED
    got = nf.cross_entropy_forward_backward(logits, targets)
    assert got.loss == 0 and (got.dlogits == 0).all()
    x, t = floats(9), np.array(4)
    got = nf.cross_entropy(x, t, lse=True)
    check(got.loss, reference(x, t)[0])
    assert got.lse.shape == ()


def test_workspace():
    logits, targets = tokens()
    expected = nf.cross_entropy(logits, targets).loss
    given = np.empty(1 << 16, np.uint8)
    assert nf.cross_entropy(logits, targets, workspace=given).loss == expected
    for small in (given[:1], np.empty(1 << 16, np.float32)):
        with pytest.raises(nf.InvalidArgument, match="workspace"):
            nf.cross_entropy(logits, targets, workspace=small)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"reduction": "none", "loss": np.zeros(1, np.float32)}, "loss"),
        ({"reduction": "average"}, "mean, sum, none"),
        ({"reduction": "sum", "denominator": 3.0}, "denominator"),
        ({"denominator": 0.0}, "denominator: cannot be 0"),
        ({"scale": 0.0}, "scale: cannot be 0"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"class_weights": np.ones(36, np.float32)}, "class_weights"),
        ({"token_loss": np.zeros((5, 3), np.float32)}, "token_loss"),
        ({"ignore_index": 2**63}, "ignore_index: .* 64 bits"),
        ({"loss": None}, "no output"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(nf.InvalidArgument, match=words):
        nf.cross_entropy(*tokens(), **options)
