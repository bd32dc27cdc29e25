"""Credentials for requests to storage: whether there are any, and those of AWS's profiles."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner_core.base.errors import BadInput
from runner_core.data.stream.bad import first_line

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig


_VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
}
"""Environment variables that show that there are credentials."""
_PROFILE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
}
"""Names in AWS's files, and obstore's."""


def signs(config: RemoteConfig, kind: str) -> bool:
    """Return True if requests are signed; `kind` is s3, gs or az."""
    if config.credentials != "auto":
        return config.credentials == "environment"
    return _has(_VARIABLES.get(kind, ())) or (kind == "s3" and _has(_PROFILE))


def of_profile() -> dict[str, Any]:
    """Return obstore's options for the active AWS profile: AWS_PROFILE, else "default".

    They are empty if the environment has keys of its own, which come first, or if no profile was named and there is no
    default one. boto3, if installed, reads AWS's files as all AWS programs do (keys, roles, SSO, processes); otherwise
    only keys in the files are read. Raises BadInput with the profile's name.
    """
    if _has(_VARIABLES["s3"]):
        return {}
    named = next((os.environ[name] for name in _PROFILE if os.environ.get(name)), None)
    profile = named or "default"
    settings = _settings(profile)
    if settings is None:
        if named is None:
            return {}  # the machine's role, if it has one
        raise BadInput(
            f"AWS profile {profile!r} is in neither {_file('credentials')} nor {_file('config')}: check AWS_PROFILE"
        )
    region = {"region": settings["region"]} if settings.get("region") else {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return _plain_keys(profile, settings) | region
    import boto3

    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=profile))
        provider()  # raises if the profile does not work
    except Exception as error:
        raise BadInput(
            f"AWS profile {profile!r} gives no credentials: {first_line(error)}. If it is an SSO profile: "
            f"aws sso login --profile {profile}"
        ) from None
    return {"credential_provider": provider} | region


def _plain_keys(profile: str, settings: Mapping[str, str]) -> dict[str, Any]:
    found = {ours: settings[theirs] for theirs, ours in _KEYS.items() if settings.get(theirs)}
    if "access_key_id" in found and "secret_access_key" in found:
        return found
    raise BadInput(
        f"AWS profile {profile!r} holds no keys (SSO, a role or a process gives them?), which only boto3 can ask for: "
        "install the package boto3, or put keys into the environment (AWS_ACCESS_KEY_ID …)"
    )


def _settings(profile: str) -> dict[str, str] | None:
    """Return the settings of a profile in AWS's two files, the credentials file first, or None."""
    found: dict[str, str] | None = None
    section = profile if profile == "default" else f"profile {profile}"
    for kind, name in (("config", section), ("credentials", profile)):
        parser = configparser.RawConfigParser(strict=False)
        file = _file(kind)
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, ValueError):
            raise BadInput(f"{file}: this AWS profile file cannot be read: correct it") from None  # it would show keys
        if parser.has_section(name):
            found = (found or {}) | dict(parser.items(name))
    return found


def _file(kind: str) -> Path:
    variable = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}[kind]
    return Path(os.environ.get(variable) or f"~/.aws/{kind}").expanduser()


def _has(names: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in names)
