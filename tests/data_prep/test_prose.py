"""Markup → prose, on docstrings in the styles found in the wild."""

import pytest

from data_prep.prose import to_prose

NUMPY = """
    Compute the weighted median along an axis.

    The data are sorted first; ties are broken
    by *position*, see :ref:`User Guide <guide>`, :func:`~numpy.lexsort` and [1]_.

    .. versionadded:: 1.2
        Something about versions that nobody reads.

    Parameters
    ----------
    x : array_like, shape (n,)
        The values whose median is wanted. NaN is
        not allowed.
    axis : {None, int}, optional
        Axis along which the median is computed.

    Returns
    -------
    median : ndarray
        An array of medians, one for each slice.

    See Also
    --------
    numpy.median : The median without any weights at all.

    Notes
    -----
    .. math:: m = \\frac{1}{2} x

    .. note::
       The algorithm takes linear time on average.

    Examples
    --------
    A short example of the function follows here:

    >>> median([1, 2, 3])
    2
    >>> for i in range(3):
    ...     print("nothing of this is prose")

    The result is the middle of the sorted values.

    References
    ----------
    .. [1] Somebody, "A paper about medians", 1999.
    """

GOOGLE = """Opens a connection to the server.

    Args:
        address (str): The address that the server listens on.
        timeout (Optional[float]): Seconds to wait before giving up. If ``None``,
            waits for ever.

    Returns:
        Connection: an open connection that the caller has to close.

    Example::

        connection = connect("localhost")  # this is only code

    The connection is not thread safe.
    """

SPHINX = """Send the message to everyone who is subscribed.

:param message: the message that is going to be sent
:type message: str
:param retries: how often to try again after a failure
:return: whether everyone has received the message
:rtype: bool
"""

MARKDOWN = """# Project title

[![build](https://x.org/b.svg)](https://x.org) ![logo](logo.png)

A library that reads [many formats](https://x.org/formats) and writes **only one** of them.

```python
import project  # code, not prose at all
```

| Name | Meaning of this column |
|------|---------|

- Fast enough for every day use
- Small, with no dependencies
"""


def test_numpy_style() -> None:
    assert to_prose(NUMPY).split("\n\n") == [
        "Compute the weighted median along an axis.",
        "The data are sorted first; ties are broken by position, see User Guide, lexsort and.",
        "The values whose median is wanted. NaN is not allowed. Axis along which the median is computed.",
        "An array of medians, one for each slice.",
        "The algorithm takes linear time on average.",
        "A short example of the function follows here.",
        "The result is the middle of the sorted values.",
    ]


def test_google_style() -> None:
    assert to_prose(GOOGLE).split("\n\n") == [
        "Opens a connection to the server.",
        "The address that the server listens on. Seconds to wait before giving up. If None, waits for ever.",
        "An open connection that the caller has to close.",
        "The connection is not thread safe.",
    ]


def test_sphinx_fields() -> None:
    assert to_prose(SPHINX) == (
        "Send the message to everyone who is subscribed.\n\n"
        "The message that is going to be sent. How often to try again after a failure. "
        "Whether everyone has received the message."
    )


def test_markdown() -> None:
    assert to_prose(MARKDOWN).split("\n\n") == [
        "A library that reads many formats and writes only one of them.",
        "Fast enough for every day use. Small, with no dependencies.",
    ]


@pytest.mark.parametrize(
    "markup",
    [
        "",
        "   \n ",
        "x = 1\ny = f(x)\n",
        ">>> print(1)\n1\n",
        "====  ====\na     b\n====  ====\n1     2\n====  ====",
        "Alias.",
    ],
)
def test_what_is_not_prose_gives_nothing(markup: str) -> None:
    assert to_prose(markup) == ""


def test_literal_blocks_are_code_whatever_they_say() -> None:
    text = "This is how the file looks like::\n\n    these words are not meant as prose at all\n\nAnd so it ends here."
    assert to_prose(text) == "This is how the file looks like.\n\nAnd so it ends here."
