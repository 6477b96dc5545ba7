"""Real-looking secrets, made up here, are in nothing that was redacted; everything else is as it was."""

import json

import pytest

from data_prep.redact import MASK, is_secret_name, redact, redacted

HF = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0" + "xYz"
GITHUB = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GOOGLE = "AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA75\nx2Fq\n-----END RSA PRIVATE KEY-----"


GITLAB = "glpat-" + "x9Kq2_Lm4Pn6-Rs8Tv0W"
DOCKER = "dckr_pat_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7"
NVIDIA = "nvapi-" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0xYz-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7"


@pytest.mark.parametrize(
    "secret",
    [HF, GITHUB, AWS, GOOGLE, JWT, KEY, GITLAB, DOCKER, NVIDIA],
    ids=["hf", "github", "aws", "google", "jwt", "key", "gitlab", "docker", "nvidia"],
)
@pytest.mark.parametrize("text", ["{}", "token {} was refused", '{{"a": "{}"}}', "--password {}", "x={}&y=1", "({})"])
def test_tokens_of_known_shape_go_wherever_they_stand(secret: str, text: str) -> None:
    found = redact(text.format(secret), {})
    assert secret not in found
    assert found == text.format(MASK)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pa55word@host:5000/path", f"https://{MASK}@host:5000/path"),
        ("postgresql+psycopg2://mlflow:x@db/m", f"postgresql+psycopg2://{MASK}@db/m"),
        ("Authorization: Bearer abcdef0123456789", f"Authorization: Bearer {MASK}"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", f"authorization: basic {MASK}"),
        ("https://b.s3/x?X-Amz-Signature=abc123&e=1", f"https://b.s3/x?X-Amz-Signature={MASK}&e=1"),
        ("MLFLOW_TRACKING_PASSWORD=hunter2", f"MLFLOW_TRACKING_PASSWORD={MASK}"),
        ("export WANDB_API_KEY='0123 456'", f"export WANDB_API_KEY='{MASK}'"),
        ('{"aws_secret_access_key": "wJalr/XUtn", "a": 1}', f'{{"aws_secret_access_key": "{MASK}", "a": 1}}'),
        ("api_key: k-123, next: 1", f"api_key: {MASK}, next: 1"),
        ("PASSWORD=correct-horse,battery,staple rest", f"PASSWORD={MASK} rest"),
        ("PASSWORD=a{b}c&d next", f"PASSWORD={MASK} next"),
        ("env HF_TOKEN=abc,HOME=/x", f"env HF_TOKEN={MASK},HOME=/x"),
        ("a?x=1&my_token=abc&y=2", f"a?x=1&my_token={MASK}&y=2"),
        ('"password": "ab\\"cd", "x": 1', f'"password": "{MASK}", "x": 1'),
        ("password: |\n  several words", f"password: |\n  {MASK} words"),
        ("password: 123456", f"password: {MASK}"),
        ("X-Api-Key: abc123", f"X-Api-Key: {MASK}"),
        ("DB_PASS=abc", f"DB_PASS={MASK}"),
        ("run --password hunter2hunter2 --x 1", f"run --password {MASK} --x 1"),
        ("- name: HF_TOKEN\n  value: abc", f"- name: HF_TOKEN\n  value: {MASK}"),
        ("https://user:p@ss@host/x", f"https://{MASK}@host/x"),
        ("postgres://user:pa/ss@host/x", f"postgres://{MASK}@host/x"),
        ("https:/user:pass@host/x", f"https:/{MASK}@host/x"),  # of an address that was taken for a path
        (f"{AWS}:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", MASK),
        (f"cache_{HF}", f"cache_{MASK}"),
        (f"x%3D{HF}", f"x%3D{MASK}"),
        # a command in the place of a value may hold one, and so may what only looks like a reference
        ('X_TOKEN="$(echo hunter2)"', f'X_TOKEN="{MASK}"'),
        ("PASSWORD=$UMMER2024", f"PASSWORD={MASK}"),
        ("X_TOKEN='$(a)hunter2(b)'", f"X_TOKEN='{MASK}'"),
    ],
)  # fmt: skip
def test_addresses_headers_and_pairs(text: str, expected: str) -> None:
    assert redact(text, {}) == expected


def test_values_of_telling_variables_go_whatever_their_shape() -> None:
    environment = {
        "RAY_AUTH_TOKEN": "3f9a-77aa-plain",
        "HF_TOKEN": "3f9a-77aa-plain-and-longer",
        "HOME": "/home/somebody",
    }
    text = "sent 3f9a-77aa-plain-and-longer, then 3f9a-77aa-plain, from /home/somebody"
    assert redact(text, environment) == f"sent {MASK}, then {MASK}, from /home/somebody"


def test_the_environment_of_the_process_is_taken_without_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "plain-as-a-word-1")
    assert redact("x plain-as-a-word-1 y") == f"x {MASK} y"


@pytest.mark.parametrize(
    "text",
    [
        "step 200, tokens/s 5,000, tokens 4.67e+05",
        "tokenizer: {kind: wordpiece, vocab_size: 8192}",
        "tokenizer_sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "max_tokens: 512",
        "token_type: 1",
        "RAY_AUTH_MODE=token",
        "RAY_AUTH_TOKEN_PATH=/etc/ray/token",
        "TOKENIZERS_PARALLELISM=false",
        "the token is missing: set HF_TOKEN",
        "secrets: [HF_TOKEN, RAY_AUTH_TOKEN]",
        "s3://bucket/prefix and user@host",
        "api_key: null",
        "HF_TOKEN=$HF_TOKEN",
        "HF_TOKEN=${HF_TOKEN}",
        "RAY_AUTH_TOKEN: $(TOKEN_OF_RAY)",
        "tie_token: [5.0e-4, 1.0e-3]",
        "token_accuracy: 0.93",
        "training.token: unknown key; did you mean 'tokens'?",
        "basic vocabulary is used",
        "http://host:5000/users/@me",
        "one pass: backward",
        "--token is refused",
        "hf_config and hf_export",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text, {}) == text


def test_redacting_twice_changes_nothing() -> None:
    once = redact(f"HF_TOKEN={HF} https://a:b@c Bearer 0123456789", {})
    assert redact(once, {}) == once


def test_plain_data() -> None:
    tree = {
        "env": {"HF_TOKEN": "short", "A": 1},
        "secrets": ["HF_TOKEN"],
        "uri": ["https://u:p@h", HF],
        "n": None,
        "t": (1,),
    }
    found = redacted(tree, {})
    assert found == {
        "env": {"HF_TOKEN": MASK, "A": 1}, "secrets": ["HF_TOKEN"], "uri": [f"https://{MASK}@h", MASK], "n": None,
        "t": [1],
    }  # fmt: skip
    assert HF not in json.dumps(found)
    kubernetes = {"name": "HF_TOKEN", "value": "short"}
    assert redacted({"env": [kubernetes, {"name": "A", "value": "b"}], "password": 12345678, "token_id": 4}, {}) == {
        "env": [{"name": "HF_TOKEN", "value": MASK}, {"name": "A", "value": "b"}], "password": MASK, "token_id": 4,
    }  # fmt: skip


def test_names() -> None:
    assert all(map(is_secret_name, ("HF_TOKEN", "aws_secret_access_key", "MLFLOW_TRACKING_PASSWORD", "apiKey")))
    assert not any(
        map(is_secret_name, ("RAY_AUTH_TOKEN_PATH", "TOKENIZERS_PARALLELISM", "tokens_per_second_x", "PATH"))
    )
