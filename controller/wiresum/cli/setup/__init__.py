"""`wiresum setup`: makes a host a worker, a switch or a controller. `plan` says what belongs on it, `steps` what each
part is and how it is made, `checks` whether it works then. The units beside this module are those of controller/deploy.
"""

from wiresum.cli.setup.command import setup

__all__ = ["setup"]
