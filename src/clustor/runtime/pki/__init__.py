"""Who a node is and whom it believes: certificates, authorities, revocation, enrolment."""
