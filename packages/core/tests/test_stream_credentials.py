"""AWS profiles: which one holds, with and without boto3, and no secret in any message."""

from __future__ import annotations

import json
import sys

import pytest
from runner_core import BadInput
from runner_core.base.location import Url
from runner_core.config import RemoteConfig
from runner_core.data.stream.client import Client
from runner_core.data.stream.credentials import of_profile, signs

pytest.importorskip("obstore")
pytest.importorskip("moto")
from s3server import S3

SECRET = "wJalrXUtnFEMI-secret"
PRIVATE = [Url("s3://private/a.tif")]


@pytest.fixture(scope="module")
def server():
    with S3() as s3:
        s3.put("private", "a.tif", b"seen", public=False)
        yield s3


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """aws(config="…", credentials="…") writes AWS's two files; nothing else of the machine's is seen."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def write(profile=None, **files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)

    return write


@pytest.fixture(params=["boto3", "without boto3"])
def sdk(request, monkeypatch):
    if request.param == "boto3":
        pytest.importorskip("boto3")
    else:
        monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    return request.param


def read(server, credentials="auto"):
    client = Client(RemoteConfig(endpoint=server.endpoint, retries=0, timeout=5, credentials=credentials))
    try:
        return client.read_many(PRIVATE)
    finally:
        client.close()


KEYS = f"aws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = {SECRET}\n"


@pytest.mark.parametrize("file, head", [("credentials", "[lab]"), ("config", "[profile lab]")])
def test_a_named_profile_opens_what_is_private(server, aws, sdk, file, head):
    aws("lab", **{file: f"{head}\n{KEYS}region = eu-west-1\n"})
    assert of_profile()["region"] == "eu-west-1"
    assert read(server) == [b"seen"]


def test_the_default_profile_is_taken_where_credentials_are_asked_for(server, aws, sdk):
    aws(credentials=f"[default]\n{KEYS}")
    assert read(server, "environment") == [b"seen"]
    assert not signs(RemoteConfig(), "s3")
    with pytest.raises(BadInput, match=r"set remote\.credentials to environment"):
        read(server)


def test_keys_of_the_environment_come_first(aws, monkeypatch):
    aws("nobody")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    assert of_profile() == {}


def test_a_profile_that_is_not_there(server, aws, sdk):
    aws("lba", credentials=f"[lab]\n{KEYS}")
    with pytest.raises(
        BadInput, match=r"s3://private/a\.tif: AWS profile 'lba' is in neither .*credentials nor .*config"
    ):
        read(server)


def test_other_ways_to_keys_are_boto3s(server, aws):
    pytest.importorskip("boto3")
    made = json.dumps({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": SECRET})
    aws("lab", config=f'[profile lab]\ncredential_process = {sys.executable} -c \'print("""{made}""")\'\n')
    assert read(server) == [b"seen"]


def test_without_boto3_it_is_named(server, aws, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    aws("lab", config="[profile lab]\nsso_session = lab\nsso_account_id = 1\n")
    with pytest.raises(BadInput, match=r"AWS profile 'lab' holds no keys .*install the package boto3"):
        read(server)


def test_no_secret_is_told(server, aws, sdk):
    for text in (
        f"[lab\n{KEYS}",
        f"[lab]\nwhat is this {SECRET}\n{KEYS}",
        f"[lab]\naws_secret_access_key = {SECRET}\n",
    ):
        aws("lab", credentials=text)
        with pytest.raises(BadInput) as caught:
            read(server)
        error: BaseException | None = caught.value
        while error is not None:
            assert SECRET not in str(error)
            error = error.__cause__
