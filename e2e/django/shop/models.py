"""One table, as small as one can be."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    amount = models.IntegerField(default=1)
