"""``python -m tests.page.serve_trial serve …`` is ``pos-gateway serve`` with the trial view.

It has the fault, too, that the process of its test tries.
"""

from tests.planting import plant_given

plant_given()

from pos_gateway.cli import main  # noqa: E402
from tests.page import trial  # noqa: E402

if __name__ == "__main__":
    trial.add()
    main()
