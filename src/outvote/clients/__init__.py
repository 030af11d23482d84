"""Clients: who owns which samples, who is asked, and what they learn in a round."""
