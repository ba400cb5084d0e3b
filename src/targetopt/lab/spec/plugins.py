"""Python files and modules that register more problems, methods and trackers."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from targetopt.types import TargetoptError


class PluginError(TargetoptError, ImportError):
    """A plugin cannot be imported; ``position`` is its place in the list."""

    def __init__(self, position: int, plugin: str, error: Exception) -> None:
        self.position = position
        super().__init__(
            f"the plugin {plugin!r} cannot be imported: {type(error).__name__}: {error}"
        )


def load_plugins(plugins: Sequence[str]) -> None:
    """Import files and modules that register problems and methods, each once per process."""
    for position, plugin in enumerate(plugins):
        try:
            if plugin.endswith(".py"):
                _import_file(Path(plugin))
            else:
                importlib.import_module(plugin)
        except Exception as error:
            raise PluginError(position, plugin, error) from error


def digests(plugins: Sequence[str]) -> dict[str, str]:
    """A fingerprint of the code of each plugin, by its name; they have been loaded."""
    found = {}
    for plugin in plugins:
        file = plugin if plugin.endswith(".py") else sys.modules[plugin].__file__
        if file is not None:
            code = Path(file).read_bytes()
            found[f"plugin {Path(plugin).name}"] = hashlib.sha256(code).hexdigest()[:16]
    return found


def _import_file(path: Path) -> None:
    name = f"targetopt_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
