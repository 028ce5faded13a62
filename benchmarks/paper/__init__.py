"""The experiments of the papers that HRM is built from, with the published values."""
