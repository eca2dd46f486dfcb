"""What the page keeps of a password is, byte by byte, what `quantum users add` keeps of it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from quantum.tenancy import SCRAM_MECHANISMS, derive_credential
from quantum.tenants.kept_passwords import KeptPassword, read_kept
from quantum.tenants.passwords import hash_password

SOURCES: Final = Path(__file__).resolve().parents[3] / "console"
PASSWORDS: Final = ["x", "x\0", "sécret пароль 密碼 🔑", "long " * 40]
ASKING: Final = """
import { build } from "esbuild";
const [, outfile, passwords] = process.argv;
await build({ entryPoints: ["src/passwords.ts"], bundle: true, format: "esm", outfile });
const { keepPassword } = await import(outfile);
const kept = [];
for (const each of JSON.parse(passwords)) kept.push(await keepPassword(each));
process.stdout.write(JSON.stringify(kept));
"""


@pytest.fixture(scope="module")
def kept_by_page(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if shutil.which("node") is None or not (SOURCES / "node_modules" / "esbuild").is_dir():
        pytest.skip("`make console` was not run here: no esbuild")
    built = tmp_path_factory.mktemp("passwords") / "passwords.mjs"
    given = [str(built), json.dumps(PASSWORDS)]  # escaped: no argument can hold a zero byte
    command = ["node", "--input-type=module", "--eval", ASKING, *given]
    told = subprocess.run(command, cwd=SOURCES, check=True, timeout=300, stdout=subprocess.PIPE)
    kept: list[str] = json.loads(told.stdout)
    return kept


def test_the_page_keeps_of_a_password_what_the_command_keeps(kept_by_page: list[str]) -> None:
    for password, kept in zip(PASSWORDS, kept_by_page, strict=True):
        found, said = read_kept(kept), password.encode()
        salt = base64.b64decode(found.scrypt.split("$")[3])
        scram = {
            each: derive_credential(each, said, found.scram[each].salt) for each in SCRAM_MECHANISMS
        }
        assert KeptPassword(hash_password(said, salt), scram).text() == kept


def test_every_hash_of_the_page_has_a_salt_of_its_own(kept_by_page: list[str]) -> None:
    salts = [part.split("$")[3] for kept in kept_by_page for part in kept.split(" ")]
    assert len(set(salts)) == len(salts) == len(PASSWORDS) * (1 + len(SCRAM_MECHANISMS))
    assert all(len(base64.b64decode(each)) == 16 for each in salts)
