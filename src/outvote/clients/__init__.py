"""Clients: who owns which pictures, who is asked, and what they learn in a round."""
