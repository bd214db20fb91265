"""Whether a SharedKVDeployment may be: the contract's one validator, told by the fields of the resource."""
