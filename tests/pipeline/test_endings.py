"""How signals end a command that is not training."""

import json
import os
import signal
import time

import pytest
import typer

from pipeline.endings import errors

SIGNALS = [signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_go_of_everything_and_is_a_sentence_and_75(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before, released = [signal.getsignal(one) for one in SIGNALS], []
    with pytest.raises(typer.Exit) as ended, errors(json_=True, debug=False):
        try:
            os.kill(os.getpid(), number)
            time.sleep(30)
        finally:
            released.append(1)
    sentence = f"interrupted by {number.name}; the same command again resumes"
    said = capsys.readouterr()
    assert (ended.value.exit_code, released, said.err) == (75, [1], f"electra: {sentence}\n")
    assert json.loads(said.out) == {"exit_code": 75, "error": sentence}
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors(json_=False, debug=False):
        raise KeyboardInterrupt
    assert (ended.value.exit_code, capsys.readouterr().err) == (
        130,
        "electra: interrupted; the same command again resumes\n",
    )
