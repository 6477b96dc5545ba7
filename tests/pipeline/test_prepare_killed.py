"""A driver killed in every stage, and the same command again: the bytes of a run that nobody disturbed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep import integrity
from data_prep import manifest as manifests
from data_prep.corpus import CorpusConfig
from pipeline.prepare import prepare
from tests.conftest import ROOT
from tests.pipeline.made_sources import hashes, write_sources

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("ray_session")]

DRIVER = """
import sys
from pathlib import Path
from cluster.session import session
from data_prep.corpus import CorpusConfig
from pipeline.prepare import prepare

config, out, cpus = sys.argv[1:]
with session(num_cpus=int(cpus)):
    print(prepare(CorpusConfig.model_validate_json(config), Path(out), 0).sha256)
"""


def start(config: CorpusConfig, out: Path, cpus: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, config.model_dump_json(), str(out), str(cpus)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_at_several_moments_it_ends_in_the_same_bytes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL of the driver in every stage, each time the same command again; then compare with the undisturbed corpus,
    which was made with another number of workers."""
    config = write_sources(tmp_path_factory.mktemp("sources"))
    corpus = tmp_path_factory.mktemp("undisturbed")
    prepare(config, corpus, 0)
    moments = [
        "documents/00000.json",
        "documents/00004.json",
        "parts/tokenizer.json",
        "parts/00001.json",
        "parts/00005.json",
    ]
    interrupted = 0
    for moment in moments:
        driver = start(config, tmp_path, cpus=1)
        deadline = time.monotonic() + 180
        while not (tmp_path / moment).exists() and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        interrupted += driver.poll() is None
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    assert interrupted >= 4
    driver = start(config, tmp_path, cpus=1)
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0
    expected = manifests.load(corpus)
    assert output.split()[-1] == expected.sha256
    assert hashes(manifests.load(tmp_path)) == hashes(expected)
    integrity.verify(tmp_path, expected)
    assert not list(tmp_path.rglob("*.tmp-*"))
