from labkernels.measure import device


def test_a_missing_package_has_no_version():
    assert device.version("no-such-package-anywhere") == ""
    assert device.version("pytest")


def test_the_host_is_named():
    assert "Python 3." in device.host()
