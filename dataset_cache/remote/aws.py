"""Where credentials for `s3://` come from: the environment, profiles of AWS' own tools, else the machine's role."""

import configparser
import importlib
import os
from pathlib import Path
from typing import Any

from .faults import NO_CREDENTIALS, Fault
from .roots import Options


def aws_options(options: Options) -> dict[str, Any]:
    """The arguments of a store for S3. What the environment says, obstore reads itself."""
    found: dict[str, Any] = {}
    profile = options.profile or os.environ.get("AWS_PROFILE", "")
    settings = _profile(profile or "default")
    if not options.anonymous and (profile or not os.environ.get("AWS_ACCESS_KEY_ID")):
        found.update(_keys(settings) or _from_boto3(profile))
    region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found["region"] = region or settings.get("region") or "us-east-1"
    endpoint = options.endpoint or ("" if _environment_endpoint() else settings.get("endpoint_url", ""))
    return {**found, "endpoint": endpoint} if endpoint else found


def _environment_endpoint() -> bool:
    return any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))


def _keys(settings: dict[str, str]) -> dict[str, str]:
    """The keys of a profile, if it has some itself."""
    if not (settings.get("aws_access_key_id") and settings.get("aws_secret_access_key")):
        return {}
    token = settings.get("aws_session_token")
    keys = {"access_key_id": settings["aws_access_key_id"], "secret_access_key": settings["aws_secret_access_key"]}
    return {**keys, **({"session_token": token} if token else {})}


def _from_boto3(profile: str) -> dict[str, Any]:
    """Profiles that log in or take a role need boto3. Without it, and without a profile, the machine's role is used."""
    if not profile:
        return {}
    try:
        session = importlib.import_module("boto3").Session(profile_name=profile)
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
        return {"credential_provider": provider(session)}
    except Exception:  # boto3 is missing, or does not know the profile either
        raise Fault(NO_CREDENTIALS) from None


def _profile(name: str) -> dict[str, str]:
    """What AWS' two files say about a profile."""
    home = Path.home() / ".aws"
    places = (
        (os.environ.get("AWS_CONFIG_FILE") or home / "config", f"profile {name}" if name != "default" else name),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials", name),
    )
    found: dict[str, str] = {}
    for path, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, ValueError, configparser.Error):
            continue
        if parser.has_section(section):
            found.update(parser.items(section))
    return found
