"""How the package writes files: whole or not at all, not through links that it did not choose, and without removing what is not its own."""
import os
import stat
import threading

import pytest

from shardlens import files


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path):
    with files.create(tmp_path / "a") as file:
        file.write(b"text")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_text() == "text"
    with pytest.raises(ZeroDivisionError), files.create(tmp_path / "a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "text"


def test_permissions_stay(tmp_path):
    path = tmp_path / "secret"
    path.write_text("before")
    path.chmod(0o600)
    with files.create(path) as file:
        assert all(mode(each) == 0o600 for each in tmp_path.iterdir())
        file.write(b"after")
    assert (path.read_text(), mode(path)) == ("after", 0o600)
    umask = os.umask(0o027)
    files.write(tmp_path / "new", "text")
    os.umask(umask)
    assert mode(tmp_path / "new") == 0o640


def test_links_stay_and_their_targets_are_written(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data/new")
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "data/new").read_text() == "text"


def test_a_link_with_a_temporary_name_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f"a.tmp{os.getpid()}").symlink_to("theirs")  # the name that temporary files had before they were random
    files.write(tmp_path / "a", "text")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
def test_a_call_that_fails_leaves_the_old_file(tmp_path, monkeypatch, call):
    (tmp_path / "a").write_text("before")

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        files.write(tmp_path / "a", "after")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_a_folder_that_is_exchanged_is_not_written(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "theirs").mkdir()
    with files.create(tmp_path / "data/a") as file:
        file.write(b"text")
        (tmp_path / "data").rename(tmp_path / "moved")
        (tmp_path / "data").symlink_to("theirs")
    assert os.listdir(tmp_path / "theirs") == []
    assert (tmp_path / "moved/a").read_text() == "text"


def test_a_fifos_reader_gets_the_bytes(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_text()))
    reader.start()
    files.write(tmp_path / "fifo", "text")
    reader.join()
    assert read == ["text"]
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


def test_errors_name_the_path(tmp_path):
    with pytest.raises(OSError, match=str(tmp_path / "no/such")):
        files.write(tmp_path / "no/such", "text")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        files.write(tmp_path, "text")
    files.write(tmp_path / ("x" * 255), "text")  # the longest name


def test_a_private_folder_goes_with_what_is_in_it_only(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").write_text("theirs")
    with files.PrivateFolder(tmp_path) as path:
        assert mode(path) == 0o700
        os.makedirs(os.path.join(path, "a/b"))
        os.symlink(tmp_path / "theirs", os.path.join(path, "a/link"))
        files.write(os.path.join(path, "a/b/c"), "text")
    assert os.listdir(tmp_path) == ["theirs"]
    assert (tmp_path / "theirs/file").read_text() == "theirs"


def test_a_folder_in_its_place_stays(tmp_path):
    folder = files.PrivateFolder(tmp_path)
    os.rename(folder.path, tmp_path / "moved")
    os.mkdir(folder.path)
    (tmp_path / os.path.basename(folder.path) / "file").write_text("theirs")
    folder.remove()
    assert os.listdir(folder.path) == ["file"]
