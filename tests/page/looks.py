"""What is wrong with a page as an operator has it: light on a desk, and dark on a phone."""

from playwright.sync_api import Page, ViewportSize

from testkit.browser.axe import violations
from testkit.browser.harm import harm

DESK: ViewportSize = {"width": 1280, "height": 720}
PHONE: ViewportSize = {"width": 390, "height": 844}


def faults(page: Page) -> list[str]:
    """What breaks a rule of axe or overflows, in both looks of the one visit."""
    found = violations(page) + harm(page)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    found += [f"dark, on a phone: {each}" for each in violations(page) + harm(page)]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESK)
    return found
